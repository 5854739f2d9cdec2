-- The text encoder of CLIP ViT-B/32.
return { name = "clip_txt", seq_len = 77, d_model = 512, heads = 8, mask = "causal" }
