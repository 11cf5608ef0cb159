//go:build !packaged

package models

import "embed"

// demo is the model inside the program, so that a program that was built from a clone can be moved anywhere.
//
//go:embed tiny-chat/config.json tiny-chat/generation_config.json tiny-chat/model.safetensors
//go:embed tiny-chat/special_tokens_map.json tiny-chat/tokenizer.json tiny-chat/tokenizer_config.json
var demo embed.FS
