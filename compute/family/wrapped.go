package family

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/nearest"
)

// wrapped are classes of models with images or sound whose text model is any of several families, or nearly one, to the model_type of the
// one that it is without a name in text_config.
func wrapped() map[string]string {
	return map[string]string{
		"AyaVisionForConditionalGeneration": "cohere2", "Cohere2VisionForConditionalGeneration": "cohere2",
		"DeepseekVLForConditionalGeneration": "llama", "DeepseekVLHybridForConditionalGeneration": "llama",
		"Ernie4_5_VLMoeForConditionalGeneration": "ernie4_5_vl_moe_text", "Ernie4_5_VL_MoeForConditionalGeneration": "ernie4_5_vl_moe_text",
		"Exaone4_5_ForConditionalGeneration": "exaone4", "FastVlmForConditionalGeneration": "qwen2", "FuyuForCausalLM": "persimmon",
		"GlmOcrForConditionalGeneration": "glm_ocr_text", "GotOcr2ForConditionalGeneration": "qwen2",
		"Granite4VisionForConditionalGeneration": "granite4_vision_text", "GraniteDoclingForConditionalGeneration": "granite_docling_text",
		"HCXVisionV2ForCausalLM": "hyperclovax", "HunYuanVLForConditionalGeneration": "hunyuan_vl_text",
		"HyperCLOVAXVisionV2ForConditionalGeneration": "hyperclovax", "Idefics2ForConditionalGeneration": "mistral",
		"Idefics3ForConditionalGeneration": "llama", "InternVLForConditionalGeneration": "qwen2", "JanusForConditionalGeneration": "llama",
		"KimiK25ForConditionalGeneration": "deepseek_v3", "Kimi_K25ForConditionalGeneration": "deepseek_v3",
		"Lfm2VlForConditionalGeneration": "lfm2", "Lfm3VlForConditionalGeneration": "lfm3", "LightOnOcrForConditionalGeneration": "qwen3",
		"LlavaForConditionalGeneration": "llama", "LlavaNextForConditionalGeneration": "llama",
		"LlavaNextVideoForConditionalGeneration": "llama", "LlavaOnevisionForConditionalGeneration": "qwen2",
		"MiniCPMOcrForConditionalGeneration": "qwen3_5_text", "MiniCPMV4_6ForConditionalGeneration": "qwen3_5_text",
		"MiniCPMV4_7ForConditionalGeneration": "qwen3_5_text", "NemotronH_Nano_Omni_Reasoning_V3": "nemotron_h",
		"NemotronH_Omni_Reasoning_V3": "nemotron_h", "Ovis2ForConditionalGeneration": "qwen2",
		"PaddleOCRVLForConditionalGeneration": "paddleocr_vl_text", "PaliGemmaForConditionalGeneration": "gemma",
		"PerceptionLMForConditionalGeneration": "llama", "QianfanOCRForConditionalGeneration": "qwen3",
		"Qwen2AudioForConditionalGeneration": "qwen2", "Qwen2_5OmniForConditionalGeneration": "qwen2_5_omni_text",
		"Qwen2_5OmniModel": "qwen2_5_omni_text", "Qwen2_5OmniThinkerForConditionalGeneration": "qwen2_5_omni_text",
		"Qwen3OmniMoeForConditionalGeneration": "qwen3_omni_moe_text", "Qwen3OmniMoeThinkerForConditionalGeneration": "qwen3_omni_moe_text",
		"SmolVLMForConditionalGeneration": "llama", "VideoLlama3ForConditionalGeneration": "qwen2",
		"VideoLlavaForConditionalGeneration": "llama", "VipLlavaForConditionalGeneration": "llama",
		"VoxtralForConditionalGeneration": "llama",
	}
}

// wrappedFactors are those of them whose logits have the factor or the cap of their text model. The others have the head's, as in
// transformers.
var wrappedFactors = []string{
	"Granite4VisionForConditionalGeneration", "GraniteDoclingForConditionalGeneration", "HCXVisionV2ForCausalLM",
	"HyperCLOVAXVisionV2ForConditionalGeneration", "PaliGemmaForConditionalGeneration",
}

// wrappedText is a text model that only models with images have: a family, and what spells its members as that family has them.
type wrappedText struct {
	kind  string
	spell func(*fields)
}

// wrappedTexts are those text models, by their model_type.
func wrappedTexts() map[string]wrappedText {
	return map[string]wrappedText{
		"ernie4_5_vl_moe_text": {"ernie4_5_moe", func(f *fields) {
			// the second ones are those of images
			f.firsts("moe_num_experts", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")
		}},
		"exaone4_5_text":       {"exaone4", nil},
		"glm_ocr_text":         {"glm4", glmOcrSpell},
		"granite4_vision_text": {"granite", nil},
		"granite_docling_text": {"granite", func(f *fields) {
			f.sizes(133800, 1024, 2048, 28, 16)
			f.defaults(map[string]any{
				"num_key_value_heads": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "embedding_multiplier": 12,
				"logits_scaling": 4, "residual_multiplier": 0.263, "attention_multiplier": 0.015625,
			})
		}},
		"hunyuan_vl_text": {"hunyuan_v1_dense", func(f *fields) { f.sizes(290943, 4096, 11008, 32, 32) }},
		"paddleocr_vl_text": {"llama", func(f *fields) { // ERNIE 4.5 rotated by halves
			f.sizes(103424, 1024, 3072, 18, 16)
			ernie45Spell(f)
			f.prefer(map[string]string{"use_bias": "attention_bias"})
			f.prefer(map[string]string{"use_bias": "mlp_bias"})
		}},
		"qwen2_vl_text": {"qwen2", nil}, "qwen2_5_vl_text": {"qwen2", nil}, "qwen3_vl_text": {"qwen3", nil},
		"qwen3_vl_moe_text": {"qwen3_moe", nil},
		"qwen2_5_omni_text": {"qwen2", func(f *fields) {
			f.sizes(152064, 3584, 18944, 28, 28)
			f.defaults(map[string]any{"num_key_value_heads": 4, "rope_theta": 1e6})
		}},
		"qwen3_omni_moe_text": {"qwen3_moe", func(f *fields) {
			f.sizes(3584, 2048, 18944, 28, 28)
			f.headsOfHidden()
			f.defaults(map[string]any{
				"num_key_value_heads": 4, "rope_theta": 1e6, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
			})
			f.set("norm_topk_prob", true) // whatever the configuration says
		}},
	}
}

// glmOcrSpell: the attention of GLM-4 without biases, and all of a head rotated.
func glmOcrSpell(f *fields) {
	f.sizes(59392, 1024, 4096, 16, 16)
	f.headsOfHidden()
	f.defaults(map[string]any{"num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
		"partial_rotary_factor": 1})
	f.set("attention_bias", false)
}

// sizes sets those that are absent.
func (f *fields) sizes(vocab, hidden, intermediate, layers, heads int) {
	f.defaults(map[string]any{
		"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
		"num_attention_heads": heads,
	})
}

// headsOfHidden sets an absent head_dim to hidden_size over the number of heads.
func (f *fields) headsOfHidden() {
	hidden, heads := f.size(maxWidth, "hidden_size"), f.size(maxHeads, "num_attention_heads")
	if f.err == nil {
		f.defaults(map[string]any{"head_dim": max(hidden/heads, 1)})
	}
}

// firsts takes the first number of members that are lists.
func (f *fields) firsts(names ...string) {
	for _, name := range names {
		var all []json.RawMessage
		if _, raw := f.get(name); raw != nil && json.Unmarshal(raw, &all) == nil && len(all) > 0 {
			f.members[name] = all[0]
		}
	}
}

// wrappedSizes sets the sizes that a family's class has by default, and text_config may leave out.
func (f *fields) wrappedSizes(kind string) {
	sizes := map[string][5]int{
		"cohere": {256000, 8192, 22528, 40, 64}, "cohere2": {256000, 8192, 22528, 40, 64}, "exaone4": {102400, 4096, 16384, 32, 32},
		"gemma": {256000, 3072, 24576, 28, 16}, "hyperclovax": {32000, 4096, 11008, 32, 32}, "granite": {32000, 4096, 11008, 32, 32},
		"lfm2": {65536, 2560, 12288, 32, 32}, "llama": {32000, 4096, 11008, 32, 32}, "mistral": {32000, 4096, 14336, 32, 32},
		"nemotron_h": {131072, 4096, 21504, 4, 32}, "persimmon": {262144, 4096, 16384, 36, 64}, "phi3": {32064, 3072, 8192, 32, 32},
		"qwen2": {151936, 4096, 22016, 32, 32}, "qwen3": {151936, 4096, 22016, 32, 32}, "qwen3_5_text": {248320, 4096, 12288, 32, 16},
		"qwen3_5_moe_text": {248320, 2048, 512, 40, 16}, "qwen3_moe": {151936, 2048, 6144, 24, 32},
	}
	if s, ok := sizes[kind]; ok {
		f.sizes(s[0], s[1], s[2], s[3], s[4])
	}
}

// textFamily is the family of the text model of a wrapped class, whose members it takes for the whole. missing is the model_type where
// text_config has none.
func textFamily(f *fields, class, missing string) *family {
	const name = "text_config"
	f.prefer(map[string]string{"llm_config": name})
	if thinker := f.object("thinker_config"); thinker.has(name) { // beside the parts that speak
		f.members[name] = thinker.members[name]
	}
	text := f.object(name)
	found := text.text(missing, "model_type")
	own := wrappedTexts()[found]
	kind := cmp.Or(own.kind, found)
	known := find(func(x *family) bool { return x.kind == kind })
	if known == nil {
		var kinds []string
		for _, x := range families() {
			kinds = append(kinds, x.kind)
		}
		near := strings.Join(nearest.Names(found, kinds, 3), ", ")
		f.fault(name+".model_type", fmt.Sprintf("%.40q", found), "that of a text model of docs/models.md, where the nearest are "+near)
		return nil
	}
	for _, size := range []string{"vocab_size", "hidden_size"} { // of the whole, of which the text model has its own
		if text.has(size) {
			delete(f.members, size)
		}
	}
	f.liftText()
	delete(f.members, "vision_config") // its defaults are those of the text model's class
	if own.spell != nil {
		own.spell(f)
	}
	f.wrappedSizes(kind)
	f.defaults(map[string]any{"tie_word_embeddings": true}) // unless there is a head
	if class == "PaliGemmaForConditionalGeneration" {
		delete(f.members, "use_bidirectional_attention") // of the prompts of images
	}
	if !slices.Contains(wrappedFactors, class) {
		for factor, none := range map[string]any{"logit_scale": 1, "logits_scaling": 1, "lm_head_multiplier": 1,
			"final_logit_softcapping": nil} {
			f.set(factor, none)
		}
	}
	return known
}
