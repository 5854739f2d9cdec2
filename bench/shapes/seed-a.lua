-- The project's first seed, and its correctness matrix: 2 items of 4 tokens.
return { name = "seed_a", batch = 2, seq_len = 4, d_model = 16, heads = 2 }
