-- llama2.c's 15M story model, prefill (without its rotary embedding).
return { name = "stories", seq_len = 256, d_model = 288, heads = 6, mask = "causal", bias = false }
