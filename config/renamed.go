package config

import "github.com/spf13/pflag"

// rename keeps the old name of a flag working: it sets the flag of the new name, unless that one is
// set as well, and warns.
func rename(f *pflag.FlagSet, old, name string) {
	f.Var(renamed{f.Lookup(name)}, old, "")
	flag := f.Lookup(old)
	flag.Hidden = true
	flag.Deprecated = "use --" + name + ": the old name goes with version 0.2"
}

// renamed is the value of a flag's old name.
type renamed struct{ flag *pflag.Flag }

// Set implements pflag.Value.
func (r renamed) Set(text string) error {
	if r.flag.Changed {
		return nil
	}
	if err := r.flag.Value.Set(text); err != nil {
		return err
	}
	r.flag.Changed = true // a source of lower precedence does not set it again
	return nil
}

// String implements pflag.Value.
func (r renamed) String() string {
	if r.flag == nil { // of the zero value, which pflag prints
		return ""
	}
	return r.flag.Value.String()
}

// Type implements pflag.Value.
func (r renamed) Type() string { return r.flag.Value.Type() }
