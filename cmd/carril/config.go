package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

const defaultConfigFile = "carril.yaml"

// configFile names the settings file.
type configFile string

// loadConfig reads the settings file into a resolver below flags and
// variables. A key that no setting has is an error: it would otherwise be
// believed to work.
func loadConfig(ctx *kong.Context) error {
	path, named := defaultConfigFile, false
	for _, arg := range ctx.Args {
		if v, ok := strings.CutPrefix(arg, "--config="); ok {
			path, named = v, true
		}
	}
	if i := slices.Index(ctx.Args, "--config"); i >= 0 && i+1 < len(ctx.Args) {
		path, named = ctx.Args[i+1], true
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return fmt.Errorf("settings file: %w", err)
	}
	values, err := parseConfig(b, flagNames(ctx.Model))
	if err != nil {
		return fmt.Errorf("settings file %s: %w", path, err)
	}
	ctx.AddResolver(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, env := range flag.Envs {
			if _, set := os.LookupEnv(env); set { // a variable stands above the file
				return nil, nil //nolint:nilnil // kong's own form of "not set here"
			}
		}
		if v, ok := values[flag.Name]; ok {
			return v, nil
		}
		return nil, nil //nolint:nilnil // kong's own form of "not set here"
	}))
	return nil
}

func flagNames(model *kong.Application) []string {
	var names []string
	for _, f := range model.Flags {
		names = append(names, f.Name)
	}
	return names
}

// parseConfig reads flat YAML whose keys are flag names; yaml.v3 refuses
// duplicate keys by itself.
func parseConfig(b []byte, known []string) (map[string]string, error) {
	var raw map[string]any
	if err := yaml.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("is not YAML: %w", err)
	}
	values := map[string]string{}
	for k, v := range raw {
		if !slices.Contains(known, k) || k == "config" || k == "help" {
			return nil, fmt.Errorf("has an unknown key %q", k)
		}
		switch v := v.(type) {
		case []any:
			parts := make([]string, len(v))
			for i, p := range v {
				parts[i] = fmt.Sprint(p)
			}
			values[k] = strings.Join(parts, ",")
		case map[string]any, nil:
			return nil, fmt.Errorf("key %q needs a value or a list", k)
		default:
			values[k] = fmt.Sprint(v)
		}
	}
	return values, nil
}

type configCmd struct{}

func (configCmd) Run(e *environment) error {
	m := e.set.Masked()
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		fmt.Fprintf(e.out, "%s: %s\n", k, m[k])
	}
	return nil
}
