-- What a kernel may be called: the name becomes C symbols, macros and file names.
--   input:  a name, the ISAs of its variants
--   output: nil, or what is wrong and what is allowed
-- Reads no other key.

local M = {}

-- C promises that this many characters of an identifier count.
local SIGNIFICANT <const> = 63
local LONGEST_SUFFIX <const> = "_workspace_bytes"

local IDENTIFIER <const> = "a letter, then letters, digits and _"

local function new_set(text)
    local set <const> = {}
    for word in text:gmatch("%S+") do
        set[word] = true
    end
    return set
end

-- C11, C23 and C++ keywords, alternative tokens included, and the one function C reserves.
local KEYWORDS <const> = new_set [[
    alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor
    bool break case catch char char8_t char16_t char32_t class co_await co_return co_yield compl
    concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false final float for friend goto if
    import inline int long main module mutable namespace new noexcept not not_eq nullptr operator
    or or_eq override private protected public reflexpr register reinterpret_cast requires restrict
    return short signed sizeof static static_assert static_cast struct switch synchronized template
    this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned
    using virtual void volatile wchar_t while xor xor_eq
]]

-- NAME.h beside other sources would be found instead of these.
local HEADERS <const> = new_set [[
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal
    stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads
    time uchar wchar wctype immintrin arm_neon pthread unistd
]]

-- NAME_kernel and the runtime's own type attn_kernel would be one identifier.
local RUNTIME_PREFIX <const> = "attn"

-- Longest name that leaves room for every public symbol made from it.
function M.max_length(isa_list)
    local variant = 0
    if #isa_list > 1 then
        for _, token in ipairs(isa_list) do
            variant = math.max(variant, #token + 1)
        end
    end
    return SIGNIFICANT - #LONGEST_SUFFIX - variant
end

function M.check(name, isa_list)
    local max_length <const> = M.max_length(isa_list)
    if name == "" then
        return "is empty", IDENTIFIER
    elseif name:find("^_") then
        return "starts with _, which C reserves", IDENTIFIER
    elseif not name:find("^[A-Za-z][A-Za-z0-9_]*$") then
        return "is no C identifier", IDENTIFIER
    elseif #name > max_length then
        return ("is %d characters long"):format(#name),
            ("at most %d, so that %s%s and the like stay within the %d that C promises"):format(
                max_length, #isa_list > 1 and "NAME_ISA" or "NAME", LONGEST_SUFFIX, SIGNIFICANT)
    elseif KEYWORDS[name] then
        return "is reserved in C or C++", "an identifier that is no keyword"
    elseif HEADERS[name:lower()] then
        return ("would shadow the header <%s.h>"):format(name:lower()), "another name"
    elseif name:lower() == RUNTIME_PREFIX then
        return "is the prefix of the runtime's own symbols", "another name"
    end
    return nil
end

return M
