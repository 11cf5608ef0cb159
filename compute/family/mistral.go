package family

// mistralConfig reads Mistral: Llama with a sliding window in every layer.
func mistralConfig(f *fields, c *Config) {
	llamaSizes(f, c, 8, 4096*32)
	missing := 4096 // MistralConfig's default; a null in the file means none
	if _, present := f.members["sliding_window"]; present {
		missing = 0
	}
	c.windows(f, 0, missing)
}
