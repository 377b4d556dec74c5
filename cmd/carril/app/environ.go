package app

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Environ gives an environment in which a process of this program has these
// settings: environ without the CARRIL_* variables that settings read, and one
// variable for each that is not empty. Secrets are in it as they are.
func (s *Settings) Environ(environ []string) []string {
	v := reflect.ValueOf(*s)
	ours := map[string]bool{}
	var set []string
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("env")
		ours[name], ours[name+"_FILE"] = true, true
		value := fmt.Sprint(v.Field(i).Interface())
		if list, ok := v.Field(i).Interface().([]string); ok {
			value = strings.Join(list, ",")
		}
		if value != "" {
			set = append(set, name+"="+value)
		}
	}
	return append(slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return ours[name]
	}), set...)
}
