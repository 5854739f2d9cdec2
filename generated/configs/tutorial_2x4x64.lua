-- The tutorials' 8-head shape, for AVX2.
return {
    batch = 2, seq_len = 4, d_model = 64, heads = 8,
    isa = "avx2",
}
