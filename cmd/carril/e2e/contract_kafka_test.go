//go:build kafka

package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// schemathesis gives the contract's fuzzer: installed once, in the project's
// ignored folder.
func schemathesis(t *testing.T) string {
	t.Helper()
	const version = "4.32.5"
	venv, err := filepath.Abs("../../../.carril/venv-contract-" + version)
	require.NoError(t, err)
	tool := filepath.Join(venv, "bin", "st")
	if exec.Command(tool, "--version").Run() == nil {
		return tool
	}
	out, err := exec.Command("python3", "-m", "venv", venv).CombinedOutput()
	require.NoError(t, err, "python3 -m venv: %s", out)
	out, err = exec.Command(filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "schemathesis=="+version).CombinedOutput()
	require.NoError(t, err, "install schemathesis: %s", out)
	return tool
}

// TestContractUnderAFuzzer lets schemathesis make requests of the OpenAPI
// document, right ones and wrong ones, alone and in sequences, and hold every
// answer of a running system against it. The seed is fixed and the requests come
// one after the other: nearly the same each time (what is asked of things that
// were made carries their ids).
func TestContractUnderAFuzzer(t *testing.T) {
	tool := schemathesis(t)
	config, err := filepath.Abs("testdata/schemathesis.toml")
	require.NoError(t, err)
	// Without a key many times over is what the fuzzer is for.
	dev := start(t, []string{"CARRIL_AUTH_FAILURES=100000"}, "dev", "--quiet", "--data", dataFolder(t), "--addr", "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, "--config-file", config, "run", dev.API+"/openapi.yaml",
		"--header", "Authorization: Bearer "+dev.Key, "--max-examples", "20", "--seed", "11", "--workers", "1", "--no-color", "--continue-on-failure",
		// Endpoints of its making would be attempted, wherever they lead.
		"--exclude-operation-id", "createEndpoint", "--exclude-operation-id", "changeEndpoint",
		// It cannot write NDJSON; the uploads have tests of their own.
		"--exclude-operation-id", "uploadRecipients")
	cmd.Dir = t.TempDir() // it remembers what failed
	out, err := cmd.CombinedOutput()
	if err != nil { // longer than an assertion's message may be
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", tail(string(out), 8))
}
