//go:build pending

// Package pending keeps modules that are about to be used in go.mod.
package pending

import (
	_ "cel.dev/cel-go/cel"
	_ "code.dny.dev/ssrf"
	_ "github.com/alecthomas/kong"
	_ "github.com/alicebob/miniredis/v2"
	_ "github.com/fergusstrange/embedded-postgres"
	_ "github.com/go-chi/chi/v5"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/linkedin/goavro/v2"
	_ "github.com/nyaruka/phonenumbers"
	_ "github.com/osteele/liquid"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/stretchr/testify/require"
	_ "github.com/twmb/avro"
	_ "github.com/twmb/franz-go/pkg/kadm"
	_ "github.com/twmb/franz-go/pkg/kfake"
	_ "github.com/twmb/franz-go/pkg/kgo"
	_ "github.com/twmb/franz-go/pkg/sasl/scram"
	_ "github.com/twmb/franz-go/pkg/sr"
	_ "github.com/twmb/franz-go/pkg/sr/srfake"
	_ "go.uber.org/goleak"
	_ "golang.org/x/net/idna"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/term"
	_ "golang.org/x/text/unicode/norm"
	_ "github.com/getkin/kin-openapi/openapi3"
	_ "pgregory.net/rapid"
)
