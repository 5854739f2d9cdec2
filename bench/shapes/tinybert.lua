-- TinyBERT with 4 layers: a head width that no vector divides.
return { name = "tinybert", seq_len = 128, d_model = 312, heads = 12, mask = "lengths" }
