-- DeiT-Tiny, ViT-Ti/16: 196 patches and a class token.
return { name = "vit_ti", seq_len = 197, d_model = 192, heads = 3 }
