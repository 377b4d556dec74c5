package testkit

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Redis returns the URL of a Redis server and a key prefix, ending with a
// colon, that belongs to the test alone. Its keys are deleted when the test
// is over.
func Redis(t testing.TB) (url, prefix string) {
	t.Helper()
	url, prefix = redisURL(t), unique("t-")+":"
	cleanup(t, "delete the Redis keys", func(ctx context.Context) error { return deleteKeys(ctx, url, prefix) })
	return url, prefix
}

// RedisClient returns a client of the server and the test's prefix. The
// client is closed when the test is over.
func RedisClient(t testing.TB) (client *redis.Client, prefix string) {
	t.Helper()
	url, prefix := Redis(t)
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatalf("parse the Redis URL: %v", err)
	}
	client = redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client, prefix
}

func deleteKeys(ctx context.Context, url, prefix string) error {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return fmt.Errorf("parse the Redis URL: %w", err)
	}
	client := redis.NewClient(opts)
	defer client.Close()
	keys := client.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := client.Del(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("delete a key: %w", err)
		}
	}
	return keys.Err()
}
