package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
)

type generateOptions struct {
	serve     config.Serve
	prompt    string
	chat      string
	system    string
	tokens    string
	maxTokens int
	stop      []string
	ignoreEOS bool
	asJSON    bool
	sampling  sample.Params
}

func newGenerate(a *app) *cobra.Command {
	o := generateOptions{sampling: sample.Default()}
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate text from a prompt, without a server",
		Long: `Generate text with the pipeline of the server, in this process. Text is printed as it is made.

--prompt goes on with a text as it is, --chat asks a chat model (the text is a user's turn in the
model's chat template), --tokens takes token ids.`,
		Example: `  millrace generate --chat "What is the capital of the US?"
  millrace generate --prompt "The capital of France is" -n 20 --temperature 0
  millrace generate --model DIR --tokens 5,6,7 -n 40 --temperature 0 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				o.sampling.Seed = rand.Uint64()
			}
			return generate(cmd.Context(), cmd.OutOrStdout(), a, &o)
		},
	}
	f := cmd.Flags()
	o.serve.Device.Register(f)
	config.RegisterModel(f, &o.serve.Model)
	f.StringVar(&o.prompt, "prompt", "", "text to go on with")
	f.StringVar(&o.chat, "chat", "", "a user's message to a chat model")
	f.StringVar(&o.system, "system", "", "system message, with --chat")
	f.StringVar(&o.tokens, "tokens", "", "prompt as token ids, separated by commas")
	f.IntVarP(&o.maxTokens, "max-tokens", "n", 0, "tokens to generate at most (0: up to the model's context)")
	f.StringArrayVar(&o.stop, "stop", nil, "end before this text; may be given more than once")
	f.BoolVar(&o.ignoreEOS, "ignore-eos", false, "go on to the token limit")
	f.Float32Var(&o.sampling.Temperature, "temperature", 0, "0: the likeliest token each time; 1: the model's own distribution")
	f.IntVar(&o.sampling.TopK, "top-k", 0, "sample from the k likeliest tokens (0: all)")
	f.Float32Var(&o.sampling.TopP, "top-p", 1, "sample from the likeliest tokens that make up this share")
	f.Float32Var(&o.sampling.MinP, "min-p", 0, "leave out tokens less likely than this share of the likeliest")
	f.Float32Var(&o.sampling.RepetitionPenalty, "repetition-penalty", 1, "over 1: against repetition")
	f.Uint64Var(&o.sampling.Seed, "seed", 0, "of sampling (default: a new one each time)")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func generate(ctx context.Context, out io.Writer, a *app, o *generateOptions) error {
	r, err := o.request()
	if err != nil {
		return err
	}
	if o.serve.Model, err = modelDir(o.serve.Model); err != nil {
		return err
	}
	if err := o.serve.Device.Validate(); err != nil {
		return err
	}
	o.serve.MaxBatchTokens, o.serve.MaxBatchSize = 512, 1
	e, err := openEngine(&o.serve, a.log)
	if err != nil {
		return err
	}
	r.Model = e.modelID
	err = printAnswer(ctx, out, e, r, o.asJSON)
	return errors.Join(err, e.shutdown(10*time.Second))
}

// request checks the flags and makes the request.
func (o *generateOptions) request() (*api.Request, error) {
	r := &api.Request{
		ID: "generate", N: 1, MaxTokens: o.maxTokens, Stop: o.stop, IgnoreEOS: o.ignoreEOS,
		TopLogprobs: -1, Sampling: o.sampling, Arrival: time.Now(),
	}
	given := 0
	if o.prompt != "" {
		given++
		r.Prompt = o.prompt
	}
	if o.chat != "" {
		given++
		if o.system != "" {
			r.Messages = append(r.Messages, api.Message{Role: "system", Content: o.system})
		}
		r.Messages = append(r.Messages, api.Message{Role: "user", Content: o.chat})
	}
	if o.tokens != "" {
		given++
		var err error
		if r.PromptTokens, err = parseTokens(o.tokens); err != nil {
			return nil, err
		}
	}
	switch {
	case given == 0:
		return nil, config.Usagef("%v", errNoPrompt)
	case given > 1:
		return nil, config.Usagef("found more than one of --prompt, --chat and --tokens, expected one")
	case o.maxTokens < 0:
		return nil, config.Usagef("--max-tokens: found %d, expected at least 0", o.maxTokens)
	}
	if err := o.sampling.Validate(); err != nil {
		return nil, config.Usagef("%v", err)
	}
	return r, nil
}

// parseTokens reads "5,6,7".
func parseTokens(s string) ([]int32, error) {
	var ids []int32
	for _, field := range strings.Split(s, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(field), 10, 32)
		if err != nil || id < 0 {
			return nil, config.Usagef("--tokens: found %q, expected token ids separated by commas", field)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// printAnswer prints text as it comes, or one JSON object at the end.
func printAnswer(ctx context.Context, out io.Writer, engine api.Engine, r *api.Request, asJSON bool) error {
	stream, err := engine.Submit(ctx, r)
	if err != nil {
		return err
	}
	defer stream.Close()
	answer := struct {
		Tokens []int32 `json:"tokens"`
		Text   string  `json:"text"`
		Finish string  `json:"finish_reason"`
	}{Tokens: []int32{}}
	var text strings.Builder
	for {
		e, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		if e.Err != nil {
			return e.Err
		}
		answer.Tokens = append(answer.Tokens, e.Tokens...)
		text.WriteString(e.Text)
		if !asJSON {
			if _, err := io.WriteString(out, e.Text); err != nil {
				return err
			}
		}
		if e.Done {
			answer.Finish = string(e.Finish)
			break
		}
	}
	if !asJSON {
		_, err := fmt.Fprintln(out)
		return err
	}
	answer.Text = text.String()
	return printJSON(out, answer)
}
