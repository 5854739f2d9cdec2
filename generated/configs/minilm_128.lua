-- One layer of all-MiniLM-L6-v2 at 128 tokens, right-padded, for AVX-512.
return {
    seq_len = 128, d_model = 384, heads = 12, mask = "lengths", unroll = "tiles",
    isa = "avx512",
}
