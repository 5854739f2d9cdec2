-- A tiny model of an OpenVINO user: 16 items, heads of width 2.
return { name = "tiny_ov", batch = 16, seq_len = 16, d_model = 16, heads = 8 }
