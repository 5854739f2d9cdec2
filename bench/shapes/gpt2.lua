-- GPT-2 small, a full context.
return { name = "gpt2", seq_len = 1024, d_model = 768, heads = 12, mask = "causal" }
