package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// childEnv makes a process the child of that name; childConfigEnv carries
// the child's settings as JSON.
const (
	childEnv       = "CARRIL_DEVSTACK_CHILD"
	childConfigEnv = "CARRIL_DEVSTACK_CHILD_CONFIG"
	brokerChild    = "broker"
)

// brokerConfig is what the parent tells the broker child. A port of 0 means
// that the part is not wanted.
type brokerConfig struct {
	Dir          string `json:"dir"`
	KafkaPort    int    `json:"kafka_port"`
	RegistryPort int    `json:"registry_port"`
	Sync         bool   `json:"sync"`
}

// startBroker runs the broker and the registry, as far as they are wanted, in
// one child: a request that the broker does not know ends its process.
func (s *Stack) startBroker(ctx context.Context) error {
	cfg, err := s.brokerConfig()
	if err != nil || (cfg.KafkaPort == 0 && cfg.RegistryPort == 0) {
		return err
	}
	err = s.launch(ctx, Kafka, processSpec{
		command: func() (*exec.Cmd, error) { return brokerCommand(cfg) },
		ready:   func(ctx context.Context) error { return brokerReady(ctx, cfg) },
		log:     filepath.Join(s.dir, "log", "broker.log"),
		signal:  syscall.SIGTERM,
	})
	if err != nil {
		return err
	}
	if cfg.KafkaPort != 0 {
		s.KafkaBrokers = []string{loopback(cfg.KafkaPort)}
		s.embed(Kafka, "franz-go's kfake, one broker for this machine alone, data in "+cfg.Dir)
	}
	if cfg.RegistryPort != 0 {
		s.RegistryURL = "http://" + loopback(cfg.RegistryPort)
		s.embed(Registry, "franz-go's srfake with a journal and compatibility checks, data in "+cfg.Dir)
	}
	return nil
}

func (s *Stack) brokerConfig() (brokerConfig, error) {
	cfg := brokerConfig{Dir: filepath.Join(s.dir, "kafka"), Sync: !s.cfg.Ephemeral}
	var err, registryErr error
	if s.wants(Kafka, len(s.KafkaBrokers) > 0) {
		cfg.KafkaPort, err = s.ports.get("kafka")
	}
	if s.wants(Registry, s.RegistryURL != "") {
		cfg.RegistryPort, registryErr = s.ports.get("registry")
	}
	return cfg, errors.Join(err, registryErr)
}

// brokerCommand runs this executable again. The child's standard input is a
// pipe that nobody writes to: it ends with this process, and the child with it.
func brokerCommand(cfg brokerConfig) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable: %w", err)
	}
	settings, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode the broker's settings: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+brokerChild, childConfigEnv+"="+string(settings))
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("make the broker's lifeline: %w", err)
	}
	tie(cmd, syscall.SIGTERM)
	return cmd, nil
}

func brokerReady(ctx context.Context, cfg brokerConfig) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if cfg.KafkaPort != 0 {
		if err := kafkaReady(ctx, loopback(cfg.KafkaPort)); err != nil {
			return err
		}
	}
	if cfg.RegistryPort != 0 {
		return registryReady(ctx, "http://"+loopback(cfg.RegistryPort))
	}
	return nil
}

func kafkaReady(ctx context.Context, broker string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Ping(ctx)
}

func registryReady(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/subjects", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the registry answers %s", resp.Status)
	}
	return nil
}
