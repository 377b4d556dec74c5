package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/softcrum/carril/internal/signature"
)

func newReceiver(secret string) *receiver { return &receiver{secret: secret} }

func (r *receiver) start() (url string, err error) {
	secret, err := signature.ParseSecret(r.secret)
	if err != nil {
		return "", fmt.Errorf("read the demo's secrets: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens at once or not at all
	if err != nil {
		return "", fmt.Errorf("start the demo's webhook receiver: %w", err)
	}
	r.srv = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
		if err == nil {
			_, err = signature.Verify([]signature.Secret{secret}, req.Header, body, time.Now())
		}
		if err != nil {
			http.Error(w, "signature", http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = r.srv.Serve(l) }() // ends with stop
	return "http://" + l.Addr().String() + "/webhooks", nil
}

func (r *receiver) stop(ctx context.Context) error { return r.srv.Shutdown(ctx) }
