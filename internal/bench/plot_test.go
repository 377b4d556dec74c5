package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlot(t *testing.T) {
	t.Parallel()
	draw := func(p Plot) string {
		var out bytes.Buffer
		require.NoError(t, p.WriteSVG(&out))
		for d := xml.NewDecoder(bytes.NewReader(out.Bytes())); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				return out.String()
			} else if err != nil {
				require.NoError(t, err, "%s", out.String())
			}
		}
	}
	idle := Series{Name: "idle <1>", Colour: "#2166ac", Points: []Point{{0, 10 * time.Millisecond}, {30 * time.Second, 12 * time.Millisecond}}}
	beside := Series{Name: "beside", Colour: "#d6604d", Hollow: true, Points: []Point{{10 * time.Second, 4 * time.Second}, {20 * time.Second, 0}}}

	t.Run("DrawsEachPointTheLineAndALegend", func(t *testing.T) {
		t.Parallel()
		out := draw(Plot{Title: "codes & a blast", Panels: []Panel{
			{Title: "5 a second", Line: time.Second, Series: []Series{idle, beside}}, {Title: "500 a second", Series: []Series{idle}}}})
		require.Equal(t, 6+3, strings.Count(out, "<circle "), "a dot for each point, and one for each legend")
		require.Equal(t, 1, strings.Count(out, "stroke-dasharray"))
		for _, text := range []string{"idle &lt;1&gt; (2)", "beside (2)", "codes &amp; a blast", "1000 ms", "0.001 ms", ">1s<"} {
			require.Contains(t, out, text)
		}
		require.NotContains(t, out, "NaN")
		require.NotContains(t, out, "href", "it needs nothing else")
	})

	t.Run("ThatIsEmptyIsAPlotToo", func(t *testing.T) {
		t.Parallel()
		require.NotContains(t, draw(Plot{Panels: []Panel{{Series: []Series{{Name: "none"}}}}}), "NaN")
	})
}
