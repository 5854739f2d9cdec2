-- The attention layer of the associative-recall model: 8 sequences of up to 33 tokens at a time
-- (16 pairs of a key and a value, then a key), each with its own length. Padding is ignored and its
-- rows are zero; the attention weights come out as well, for the heat map.
return {
    name = "recall",
    batch = 8,
    seq_len = 33,
    d_model = 64,
    heads = 4,
    mask = "lengths",
    padded_queries = "zero",
    return_weights = "per_head",
    isa = { "avx512", "avx2", "scalar" },
}
