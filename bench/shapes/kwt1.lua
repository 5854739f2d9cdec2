-- Keyword transformer KWT-1: 98 frames and a class token, one head.
return { name = "kwt1", seq_len = 99, d_model = 64, heads = 1 }
