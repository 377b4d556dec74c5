package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/softcrum/carril/internal/signature"
)

// receiver is where the demo's webhooks arrive; it checks their signatures.
type receiver struct {
	secret atomic.Pointer[signature.Secret]
	srv    *http.Server
}

// expect tells the receiver the secret of its endpoint.
func (r *receiver) expect(secret string) error {
	s, err := signature.ParseSecret(secret)
	if err != nil {
		return fmt.Errorf("read the demo's secrets: %w", err)
	}
	r.secret.Store(&s)
	return nil
}

func (r *receiver) start() (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens at once or not at all
	if err != nil {
		return "", fmt.Errorf("start the demo's webhook receiver: %w", err)
	}
	r.srv = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(r.receive)}
	go func() { _ = r.srv.Serve(l) }() // ends with stop
	return "http://" + l.Addr().String() + "/webhooks", nil
}

func (r *receiver) receive(w http.ResponseWriter, req *http.Request) {
	secret := r.secret.Load()
	if secret == nil {
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
	if err == nil {
		_, err = signature.Verify([]signature.Secret{*secret}, req.Header, body, time.Now())
	}
	if err != nil {
		http.Error(w, "signature", http.StatusUnauthorized)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (r *receiver) stop(ctx context.Context) error { return r.srv.Shutdown(ctx) }
