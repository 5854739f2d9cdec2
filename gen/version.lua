-- The version of attngen, in one place. It is part of every emitted banner and manifest, so the
-- same config and the same version always give the same bytes.
return { VERSION = "0.1.0" }
