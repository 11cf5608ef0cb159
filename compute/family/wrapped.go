package family

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// wrapped are classes of models with images or sound whose text model is any of several families, to the model_type of the one that it is without a name in
// text_config. Their logits are the head's: families with a factor or a cap of logits are not read from them.
func wrapped() map[string]string {
	return map[string]string{
		"FastVlmForConditionalGeneration": "qwen2", "GotOcr2ForConditionalGeneration": "qwen2", "Idefics2ForConditionalGeneration": "mistral",
		"Idefics3ForConditionalGeneration": "llama", "InternVLForConditionalGeneration": "qwen2", "Kimi_K25ForConditionalGeneration": "deepseek_v3",
		"KimiK25ForConditionalGeneration": "deepseek_v3", "Lfm2VlForConditionalGeneration": "lfm2", "LightOnOcrForConditionalGeneration": "qwen3",
		"LlavaForConditionalGeneration": "llama", "LlavaNextForConditionalGeneration": "llama", "LlavaOnevisionForConditionalGeneration": "qwen2",
		"PerceptionLMForConditionalGeneration": "llama", "Qwen2AudioForConditionalGeneration": "qwen2", "SmolVLMForConditionalGeneration": "llama",
		"VoxtralForConditionalGeneration": "llama",
	}
}

// wrappedTexts are the families that such a model may have, with the sizes that their classes have by default and text_config may leave out.
func wrappedTexts() map[string]map[string]any {
	sizes := func(vocab, intermediate int) map[string]any {
		return map[string]any{"vocab_size": vocab, "hidden_size": 4096, "intermediate_size": intermediate, "num_hidden_layers": 32, "num_attention_heads": 32}
	}
	return map[string]map[string]any{
		"llama": sizes(32000, 11008), "mistral": sizes(32000, 14336), "qwen2": sizes(151936, 22016), "qwen3": sizes(151936, 22016),
		"deepseek_v3": nil, "lfm2": nil, "phi3": nil, "qwen3_moe": nil,
	}
}

// textFamily is the family of the text model of a wrapped class, whose members it takes for the whole.
func textFamily(f *fields, missing string) *family {
	kind := f.object("text_config").text(missing, "model_type")
	sizes, ok := wrappedTexts()[kind]
	if !ok {
		f.fault("text_config.model_type", fmt.Sprintf("%.40q", kind), "one of "+strings.Join(slices.Sorted(maps.Keys(wrappedTexts())), ", "))
		return nil
	}
	f.liftText()
	delete(f.members, "vision_config") // its defaults are those of the text model's class
	f.defaults(sizes)
	f.defaults(map[string]any{"tie_word_embeddings": true}) // unless there is a head
	return find(func(x *family) bool { return x.kind == kind })
}
