package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/models"
	"github.com/millrace/millrace/models/hub"
)

// takesModel lets a command take its model as an argument in place of --model.
func takesModel(cmd *cobra.Command) {
	cmd.Use += " [MODEL]"
	cmd.ValidArgsFunction = downloaded(cobra.ShellCompDirectiveDefault) // or a path
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		model := cmd.Flags().Lookup("model")
		switch {
		case len(args) == 0:
			return nil
		case len(args) > 1:
			return fmt.Errorf("found the arguments %q, expected MODEL alone; everything else is a flag", args)
		case model.Changed && model.Value.String() != args[0]:
			return config.Usagef("found MODEL %q and --model %q, expected one of them", args[0], model.Value)
		}
		return cmd.Flags().Set(model.Name, args[0])
	}
}

// modelDir is the directory or file that --model names, or the demo model's directory.
func modelDir(flag string) (string, error) {
	path, _, err := findModel(flag)
	return path, err
}

// findModel returns the path of a model and its name in the API. A name that is also a path is the path. "" is the demo model.
func findModel(text string) (path, id string, err error) {
	if text == "" {
		path, err = models.Demo()
		return path, models.DemoName, err
	}
	if filepath.Base(text) == "config.json" { // it stands for its folder
		text = filepath.Dir(text)
	}
	info, err := os.Stat(text)
	if err == nil {
		return text, fileName(text), checkPath(text, info)
	}
	n, nameErr := hub.ParseName(text)
	if nameErr != nil || !errors.Is(err, fs.ErrNotExist) {
		return "", "", noSuchPath(text, err)
	}
	store, err := hub.DefaultStore()
	if err != nil {
		return "", "", err
	}
	m, err := store.Find(n)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "",
			fmt.Errorf("--model: found no folder %q and no downloaded model of that name, expected one of them: \"millrace pull %s\" downloads it", text, n)
	}
	if err != nil {
		return "", "", err
	}
	return m.Path(), m.Name, nil
}

// checkPath refuses a path that is no model, before its files are read.
func checkPath(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir(), weights.IsGGUF(path):
		return nil
	case strings.HasSuffix(path, ".safetensors"), strings.HasSuffix(path, ".bin"):
		return fmt.Errorf("--model: found %q, a file of weights, expected its folder, with config.json: %q", path, filepath.Dir(path))
	}
	return fmt.Errorf("--model: found %q, which is no folder and whose name does not end in .gguf, expected a model's folder or a GGUF file",
		path)
}

// noSuchPath says what a text that names nothing could have been.
func noSuchPath(text string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--model: %w", err)
	}
	list := "\"millrace pull OWNER/NAME\" downloads one"
	if store, err := hub.DefaultStore(); err == nil {
		if have, err := store.List(); err == nil && len(have) > 0 {
			names := make([]string, len(have))
			for i, m := range have {
				names[i] = m.Name
			}
			list = "downloaded are " + strings.Join(names, ", ")
		}
	}
	return fmt.Errorf("--model: found no folder or file %q, expected one, or OWNER/NAME of a downloaded model: %s", text, list)
}

// fileName is the name in the API of a model at a path.
func fileName(path string) string {
	if whole, err := filepath.Abs(path); err == nil { // of "."
		path = whole
	}
	name := filepath.Base(path)
	if weights.IsGGUF(name) {
		return strings.TrimSuffix(name, filepath.Ext(name))
	}
	return name
}
