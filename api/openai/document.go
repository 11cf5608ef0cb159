package openai

func (s *server) document() ([]byte, error) { return []byte("{}"), nil }
