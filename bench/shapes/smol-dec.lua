-- SmolLM2-135M, one decode step with 512 tokens in the cache (without its rotary embedding).
return { name = "smol_dec", seq_len = 1, kv_len = 512, d_model = 576, heads = 9, kv_heads = 3,
    bias = false, kv_cache = "append" }
