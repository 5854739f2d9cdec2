-- Whisper tiny, encoder: 30 seconds of audio. Its key projection has no bias.
return { name = "whisper_e", seq_len = 1500, d_model = 384, heads = 6, bias = { k = false } }
