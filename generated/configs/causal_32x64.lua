-- A small causal layer that returns its attention weights, for AArch64.
return {
    seq_len = 32, d_model = 64, heads = 4, mask = "causal", return_weights = "per_head",
    isa = "neon", unroll = "tiles",
}
