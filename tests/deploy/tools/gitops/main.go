// Shows what Argo CD and Flux make of manifests, by the libraries of Argo CD and Flux.
//
// Reads a JSON list of {"config": OBJECT, "live": OBJECT}, where live is the object after a sync of config. Writes a
// list with the difference and the health that Argo CD finds, and the manifest after Flux has substituted variables.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/fluxcd/pkg/envsubst"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type pair struct {
	Config map[string]any `json:"config"`
	Live   map[string]any `json:"live"`
}

type result struct {
	Modified    bool            `json:"modified"`
	Live        json.RawMessage `json:"live"`
	Predicted   json.RawMessage `json:"predicted"`
	Health      string          `json:"health"`
	Message     string          `json:"message"`
	Substituted json.RawMessage `json:"substituted"`
}

func examine(given pair) (result, error) {
	text, err := json.Marshal(given.Config)
	if err != nil {
		return result{}, err
	}
	// As with an empty postBuild.substituteFrom: an unknown variable is replaced by an empty text.
	substituted, err := envsubst.Eval(string(text), func(string) (string, bool) { return "", true })
	if err != nil {
		return result{}, err
	}
	config, live := &unstructured.Unstructured{Object: given.Config}, &unstructured.Unstructured{Object: given.Live}
	found, err := diff.Diff(context.Background(), config, live)
	if err != nil {
		return result{}, err
	}
	status, err := health.GetResourceHealth(live, nil)
	if err != nil {
		return result{}, err
	}
	made := result{
		Modified: found.Modified, Live: found.NormalizedLive, Predicted: found.PredictedLive,
		Substituted: json.RawMessage(substituted),
	}
	if status != nil {
		made.Health, made.Message = string(status.Status), status.Message
	}
	return made, nil
}

func run() error {
	var pairs []pair
	if err := json.NewDecoder(os.Stdin).Decode(&pairs); err != nil {
		return err
	}
	results := make([]result, 0, len(pairs))
	for _, given := range pairs {
		made, err := examine(given)
		if err != nil {
			return err
		}
		results = append(results, made)
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
