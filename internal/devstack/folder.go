package devstack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// ephemeralPrefix marks temporary data folders, so that the ones left behind
// by a killed process are found again.
const ephemeralPrefix = "carril-devstack-"

// dataDir makes and returns the absolute data folder.
func dataDir(cfg Config) (string, error) {
	if cfg.Dir == "" && !cfg.Ephemeral {
		return "", errors.New("a data folder is needed unless the stack is ephemeral")
	}
	if cfg.Dir == "" {
		removeAbandoned()
		dir, err := os.MkdirTemp("", ephemeralPrefix)
		if err != nil {
			return "", fmt.Errorf("make a temporary data folder: %w", err)
		}
		// Another user runs PostgreSQL when this process is root.
		return dir, os.Chmod(dir, 0o711)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the data folder: %w", err)
	}
	return dir, nil
}

// removeAbandoned removes temporary data folders whose process is gone.
func removeAbandoned() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), ephemeralPrefix+"*"))
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if unlock, err := lockDir(dir); err == nil {
			_ = os.RemoveAll(dir)
			unlock()
		}
	}
}

// lockDir takes the data folder for this process. The kernel gives it back
// when the process ends, however it ends.
func lockDir(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w (process %s)", dir, ErrInUse, holder)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	return func() { _ = f.Close() }, nil
}

// portPatience is how long a stored port may be held by a child of the
// previous life that is still ending, before another port is chosen.
const portPatience = 3 * time.Second

// ports are the loopback ports of the parts: free ones, chosen once and kept
// in a file, so that an address written down yesterday works today.
type ports struct {
	path string

	mu     sync.Mutex
	chosen map[string]int
}

func openPorts(path string) (*ports, error) {
	p := &ports{path: path, chosen: map[string]int{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the chosen ports: %w", err)
	}
	if err := json.Unmarshal(b, &p.chosen); err != nil {
		return nil, fmt.Errorf("read the chosen ports in %s: %w", path, err)
	}
	return p, nil
}

// get returns the port stored under name if it is free, else a new one, which
// it stores.
func (p *ports) get(name string) (int, error) {
	p.mu.Lock()
	stored := p.chosen[name]
	p.mu.Unlock()
	if stored != 0 && becomesFree(stored, portPatience) {
		return stored, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	port, err := p.freePort()
	if err != nil {
		return 0, err
	}
	p.chosen[name] = port
	b, err := json.MarshalIndent(p.chosen, "", "  ")
	if err != nil {
		return 0, fmt.Errorf("encode the chosen ports: %w", err)
	}
	if err := writeFile(p.path, b); err != nil {
		return 0, fmt.Errorf("store the chosen ports: %w", err)
	}
	return port, nil
}

// freePort finds a port that nobody holds, no other part here either: none of
// those that the kernel gives to whoever asks it for any, who would have it as
// soon as the stack is down for a moment.
func (p *ports) freePort() (int, error) {
	var err error
	for range 100 {
		port := 20_000 + rand.IntN(10_000)
		if p.holds(port) {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			_ = l.Close()
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

func (p *ports) holds(port int) bool {
	for _, taken := range p.chosen {
		if taken == port {
			return true
		}
	}
	return false
}

func becomesFree(port int, patience time.Duration) bool {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		l, err := net.Listen("tcp", loopback(port))
		if err == nil {
			_ = l.Close()
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// writeFile replaces path in one step: a kill leaves the old or the new file.
func writeFile(path string, b []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
