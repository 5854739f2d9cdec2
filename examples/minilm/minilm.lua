-- Self-attention of all-MiniLM-L6-v2 (all six layers have this shape): 8 sentences of up to 128
-- tokens, each with its own length; padding is ignored and its rows are zero.
return {
    batch = 8,
    seq_len = 128,
    d_model = 384,
    heads = 12,
    mask = "lengths",
    padded_queries = "zero",
}
