-- Keyword transformer KWT-3.
return { name = "kwt3", seq_len = 99, d_model = 192, heads = 3 }
