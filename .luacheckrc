std = "lua54"
max_line_length = 100
exclude_files = { "build" }

-- Test suites are global tables, so that luaunit finds them.
files["tests/unit"] = { allow_defined_top = true, self = false }
