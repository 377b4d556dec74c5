package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

var redisVersionPattern = regexp.MustCompile(`v=((\d+)\.(\d+)[.\d]*)`)

// startRedis runs the machine's own redis-server, or miniredis in this
// process where there is none.
func (s *Stack) startRedis(ctx context.Context) error {
	if !s.wants(Redis, s.RedisURL != "") {
		return nil
	}
	port, err := s.ports.get("redis")
	if err != nil {
		return err
	}
	server, version := findRedis(ctx)
	if server == "" {
		return s.startMiniredis(port)
	}
	dir := filepath.Join(s.dir, "redis")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the folder of Redis: %w", err)
	}
	err = s.launch(ctx, Redis, processSpec{
		command: func() (*exec.Cmd, error) { return redisCommand(server, dir, port, s.cfg.Ephemeral), nil },
		ready:   func(ctx context.Context) error { return redisReady(ctx, port) },
		log:     filepath.Join(s.dir, "log", "redis.log"),
		signal:  syscall.SIGTERM,
	})
	if err != nil {
		return err
	}
	s.RedisURL = redisURL(port)
	s.embed(Redis, fmt.Sprintf("Redis %s, data in %s", version, dir))
	return nil
}

// findRedis returns the machine's redis-server when it is 6.2 or later.
func findRedis(ctx context.Context) (path, version string) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ""
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", ""
	}
	match := redisVersionPattern.FindSubmatch(out)
	if match == nil {
		return "", ""
	}
	major, _ := strconv.Atoi(string(match[2]))
	minor, _ := strconv.Atoi(string(match[3]))
	if major < 6 || (major == 6 && minor < 2) {
		return "", ""
	}
	return path, string(match[1])
}

func redisCommand(server, dir string, port int, ephemeral bool) *exec.Cmd {
	appendOnly := "yes"
	if ephemeral {
		appendOnly = "no"
	}
	cmd := exec.Command(server,
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--daemonize", "no",
		"--save", "", "--appendonly", appendOnly, "--appendfsync", "everysec", "--loglevel", "notice")
	tie(cmd, syscall.SIGTERM)
	return cmd
}

func redisReady(ctx context.Context, port int) error {
	client := redis.NewClient(&redis.Options{Addr: loopback(port), MaxRetries: -1, DialTimeout: time.Second})
	defer client.Close()
	return client.Ping(ctx).Err()
}

// startMiniredis serves an in-memory Redis. Its TTLs follow the clock: they
// would otherwise stand still.
func (s *Stack) startMiniredis(port int) error {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.StartAddr(loopback(port)); err != nil {
		return fmt.Errorf("start the in-memory Redis: %w", err)
	}
	s.addRelease(m.Close)
	s.RedisURL = redisURL(port)
	s.embed(Redis, "in-memory Redis in this process (no redis-server 6.2 or later found); it forgets at every start")
	return nil
}

func redisURL(port int) string { return "redis://" + loopback(port) + "/0" }
