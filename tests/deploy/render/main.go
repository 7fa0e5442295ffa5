// Renders the chart's templates with the template engine and the functions that Helm has: Go's
// text/template and sprig, and the few that Helm adds. It stands in for `helm template`, which no
// package source of the tests has.
//
//	render CHART < {"Values": …, "Release": …, "Chart": …}  >  {"NAME": "TEXT", …}
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

// files is what templates see as .Files.
type files string

// Get returns the text of a file of the chart, or nothing, as Helm does.
func (chart files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(string(chart), name))
	if err != nil {
		return ""
	}
	return string(text)
}

func toYaml(value interface{}) (string, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(value)
	return strings.TrimSuffix(text.String(), "\n"), err
}

func fromYaml(text string) (map[string]interface{}, error) {
	value := map[string]interface{}{}
	err := yaml.Unmarshal([]byte(text), &value)
	return value, err
}

func required(complaint string, value interface{}) (interface{}, error) {
	if value == nil || value == "" {
		return nil, errors.New(complaint)
	}
	return value, nil
}

func render(chart string, data map[string]interface{}) (map[string]string, error) {
	all := template.New("chart").Option("missingkey=zero").Funcs(sprig.TxtFuncMap())
	all.Funcs(template.FuncMap{
		"toYaml": toYaml, "fromYaml": fromYaml, "required": required,
		"include": func(name string, data interface{}) (string, error) {
			var text strings.Builder
			err := all.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
	})
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if _, err := all.New(filepath.Base(path)).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	data["Files"] = files(chart)
	rendered := map[string]string{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text bytes.Buffer
		if err := all.ExecuteTemplate(&text, name, data); err != nil {
			return nil, err
		}
		rendered[name] = text.String()
	}
	return rendered, nil
}

func main() {
	data := map[string]interface{}{}
	err := json.NewDecoder(os.Stdin).Decode(&data)
	if err == nil {
		var rendered map[string]string
		if rendered, err = render(os.Args[1], data); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(rendered)
		}
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}
