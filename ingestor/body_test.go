package ingestor

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/httpserver"
)

func TestContentType(t *testing.T) { // bad inputs row 41
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	for _, good := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", `application/json; charset="utf-8"`} {
		resp, _ := f.post(t, trackPath, track("x"), "Content-Type", good)
		require.Equal(t, http.StatusAccepted, resp.StatusCode, good)
	}
	for _, bad := range []string{"", "text/plain", "application/json; charset=latin1", "application/json; profile=x", "application/jsonl", "application/json, text/plain", "json", "*/*"} {
		resp, body := f.post(t, trackPath, track("x"), "Content-Type", bad)
		requireProblem(t, resp, body, http.StatusUnsupportedMediaType, "unsupported_media_type")
	}
}

func gzipOf(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func zstdOf(t *testing.T, b []byte) []byte {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	defer w.Close()
	return w.EncodeAll(b, nil)
}

func TestEncoding(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	send := func(t *testing.T, encoding string, body []byte) (*http.Response, string) {
		return f.do(t, call{path: batchPath, body: body, headers: map[string]string{"Content-Encoding": encoding}})
	}
	big := []byte(batchOf(items(500)...))
	for name, encoded := range map[string][]byte{"gzip": gzipOf(t, big), "GZIP": gzipOf(t, big), "zstd": zstdOf(t, big), "identity": big} {
		t.Run("Takes_"+name, func(t *testing.T) {
			for range 3 { // decoders are used again
				resp, body := send(t, name, encoded)
				require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
			}
		})
	}
	t.Run("RefusesWhatItDoesNotKnow", func(t *testing.T) { // row 31
		for _, encoding := range []string{"snappy", "br", "deflate", "gzip, gzip", "gzip,"} {
			resp, body := send(t, encoding, big)
			requireProblem(t, resp, body, http.StatusUnsupportedMediaType, "unsupported_encoding")
		}
	})
	t.Run("RefusesWhatIsNotWhatItSays", func(t *testing.T) { // row 32
		for name, b := range map[string][]byte{"plain": big, "empty": nil, "cut": gzipOf(t, big)[:1000], "flipped": flip(gzipOf(t, big)), "trailing": append(gzipOf(t, big), "x"...)} {
			resp, body := send(t, "gzip", b)
			requireProblem(t, resp, body, http.StatusBadRequest, "invalid_encoding")
			if name == "plain" || name == "cut" {
				resp, body = send(t, "zstd", b)
				requireProblem(t, resp, body, http.StatusBadRequest, "invalid_encoding")
			}
		}
		resp, body := send(t, "zstd", zstdOf(t, big)[:1000])
		requireProblem(t, resp, body, http.StatusBadRequest, "invalid_encoding")
	})
	t.Run("StopsABomb", func(t *testing.T) { // row 29
		zeros := make([]byte, 64<<20)
		for encoding, bomb := range map[string][]byte{"gzip": gzipOf(t, zeros), "zstd": zstdOf(t, zeros)} {
			require.Less(t, len(bomb), 128<<10)
			resp, body := send(t, encoding, bomb)
			requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "inflated_too_large")
			require.LessOrEqual(t, f.api.held.Load(), int64(5<<20)+1)
		}
	})
	t.Run("StopsAtTheSizeWhateverTheRatio", func(t *testing.T) {
		f := newFront(t, Config{MaxRatio: 1 << 30, MaxBatchBody: 1 << 20}, httpserver.Config{}, nil)
		resp, body := f.do(t, call{path: batchPath, body: gzipOf(t, bytes.Repeat([]byte(" "), 1<<20+1)), headers: map[string]string{"Content-Encoding": "gzip"}})
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "inflated_too_large")
		resp, body = f.do(t, call{path: batchPath, body: gzipOf(t, bytes.Repeat([]byte(" "), 1<<20)), headers: map[string]string{"Content-Encoding": "gzip"}})
		requireProblem(t, resp, body, http.StatusBadRequest, "empty_body")
	})
	t.Run("StopsAtTheRatioWhateverTheSize", func(t *testing.T) {
		f := newFront(t, Config{MaxRatio: 10}, httpserver.Config{}, nil)
		resp, body := f.do(t, call{path: batchPath, body: gzipOf(t, bytes.Repeat([]byte(" "), 512<<10)), headers: map[string]string{"Content-Encoding": "gzip"}})
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "inflated_too_large")
	})
}

func flip(b []byte) []byte {
	b[len(b)/2] ^= 0xff
	return b
}

func TestBodySize(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{ReadTimeout: 3 * time.Second}, nil)
	const headers = " HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"
	t.Run("RefusesOneByteTooMany", func(t *testing.T) { // row 18
		t.Parallel()
		full := track("x") + strings.Repeat(" ", 1<<20-len(track("x")))
		resp, _ := f.post(t, trackPath, full)
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		resp, body := f.post(t, trackPath, full+" ")
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "body_too_large")
	})
	t.Run("RefusesOneByteTooManyInChunks", func(t *testing.T) {
		t.Parallel()
		resp, body := f.raw(t, "POST "+trackPath+headers+"Transfer-Encoding: chunked\r\n\r\n100001\r\n"+strings.Repeat(" ", 1<<20+1)+"\r\n0\r\n\r\n")
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "body_too_large")
	})
	t.Run("DecidesByTheHeader", func(t *testing.T) { // row 18
		t.Parallel()
		resp, body := f.raw(t, "POST "+trackPath+headers+"Content-Length: 9999999999\r\n\r\nabc")
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "body_too_large") // waiting for the body would end in a 408
		require.True(t, resp.Close)
	})
	t.Run("Answers408WhenTheRestDoesNotCome", func(t *testing.T) {
		t.Parallel()
		for _, encoding := range []string{"", "Content-Encoding: gzip\r\n"} {
			resp, body := f.raw(t, "POST "+trackPath+headers+encoding+"Content-Length: 100\r\n\r\n\x1f")
			requireProblem(t, resp, body, http.StatusRequestTimeout, "request_timeout")
		}
	})
	t.Run("RefusesAnEncodedBodyThatNeverBecomesAnything", func(t *testing.T) {
		t.Parallel()
		nothing := bytes.Repeat(gzipOf(t, nil), 1<<20/len(gzipOf(t, nil))+1)
		resp, body := f.raw(t, fmt.Sprintf("POST %s%sContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", trackPath, headers, len(nothing), nothing))
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "body_too_large")
	})
	t.Run("RefusesBrokenChunks", func(t *testing.T) {
		t.Parallel()
		resp, body := f.raw(t, "POST "+trackPath+headers+"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
		requireProblem(t, resp, body, http.StatusBadRequest, "unreadable_body")
	})
	t.Run("RefusesTooMuchAtOnce", func(t *testing.T) { // faults P13
		t.Parallel()
		f := newFront(t, Config{MaxBatchBody: 1 << 20, MaxHeldBytes: 1 << 20}, httpserver.Config{}, nil)
		pr, pw := io.Pipe()
		held := make(chan *http.Response, 1)
		go func() {
			req, _ := http.NewRequest(http.MethodPost, "http://"+f.addr+batchPath, pr)
			req.Header = http.Header{"Authorization": {"Bearer " + goodKey}, "Content-Type": {"application/json"}}
			req.ContentLength = 1<<20 - 100
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Do(req)
			if err != nil {
				t.Error(err)
			}
			held <- resp
		}()
		require.Eventually(t, func() bool { return f.api.held.Load() > 1<<19 }, waitFor, time.Millisecond)
		resp, body := f.post(t, trackPath, track("x"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "overloaded")
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		_, err := io.WriteString(pw, strings.Repeat(" ", 1<<20-100))
		require.NoError(t, err)
		require.NoError(t, pw.Close())
		first := <-held
		require.NoError(t, first.Body.Close())
		require.Equal(t, http.StatusBadRequest, first.StatusCode)
		require.Eventually(t, func() bool { return f.api.held.Load() == 0 }, waitFor, time.Millisecond)
		resp, _ = f.post(t, trackPath, track("x"))
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
	})
}
