-- Swin-T, stage 1: 64 windows of 7 x 7 patches. Timed without the relative position bias.
return { name = "swin_t", batch = 64, seq_len = 49, d_model = 96, heads = 3 }
