-- The project's second seed: 2 items of 4 tokens, 8 heads.
return { name = "seed_b", batch = 2, seq_len = 4, d_model = 64, heads = 8 }
