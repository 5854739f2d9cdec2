-- BERT-base.
return { name = "bert", seq_len = 128, d_model = 768, heads = 12, mask = "lengths" }
