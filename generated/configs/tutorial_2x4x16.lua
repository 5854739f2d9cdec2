-- The smallest shape of the tutorials, 2 heads, without any loop, in portable C.
return {
    batch = 2, seq_len = 4, d_model = 16, heads = 2,
    isa = "scalar", unroll = "full", code_budget = 262144,
}
