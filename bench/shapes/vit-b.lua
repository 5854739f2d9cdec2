-- ViT-B/16, DeiT-B.
return { name = "vit_b", seq_len = 197, d_model = 768, heads = 12 }
