-- Attention without projections, 2 key heads for 4 query heads, padding given as a mask, and a
-- dispatcher over two variants.
return {
    op = "sdpa", seq_len = 8, kv_len = 24, heads = 4, kv_heads = 2, head_dim = 16,
    mask = "padding", isa = { "scalar", "avx2" },
}
