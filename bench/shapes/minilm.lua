-- The attention layer of all-MiniLM-L6-v2.
return { name = "minilm", seq_len = 128, d_model = 384, heads = 12, mask = "lengths" }
