package family

// qwen3Config reads Qwen3: Llama with RMS norms over each head of q and k.
func qwen3Config(f *fields, c *Config) {
	if !f.has("head_dim") {
		f.members["head_dim"] = []byte("128") // Qwen3Config's default, not hidden / heads
	}
	llamaSizes(f, c, 32, 32768)
	c.QKNorm = true
	c.QKVBias = f.flag(false, "attention_bias")
	c.OutBias = c.QKVBias
	qwenWindows(f, c)
}
