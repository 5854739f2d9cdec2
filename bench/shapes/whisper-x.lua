-- Whisper tiny, decoder cross-attention: one token against the encoder's keys and values.
return { name = "whisper_x", seq_len = 1, kv_len = 1500, d_model = 384, heads = 6,
    kv_cache = "static" }
