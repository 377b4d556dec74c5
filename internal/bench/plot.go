package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"text/template"
	"time"
)

// Plot is latencies over time, a panel below the other, as one SVG that needs
// nothing else to be seen.
type Plot struct {
	Title  string
	Panels []Panel
}

// Panel has axes of its own: seconds to the right, milliseconds upwards on a
// logarithmic scale.
type Panel struct {
	Title  string
	Line   time.Duration // a dashed line across, with its value; 0: none
	Series []Series
}

// Series is one kind of operation: a dot each.
type Series struct {
	Name   string
	Colour string // as SVG takes it: "#2166ac"
	Hollow bool   // rings in the place of discs
	Points []Point
}

// Point is one operation: when it began, from the start of its measurement, and
// what it took.
type Point struct{ At, Took time.Duration }

// Geometry of a panel, in pixels.
const (
	plotWidth   = 960
	panelHeight = 330
	plotLeft    = 70
	plotRight   = 20
	plotTop     = 60
	innerHeight = 220
)

// WriteSVG draws the plot.
func (p Plot) WriteSVG(w io.Writer) error {
	view := svgView{Title: html.EscapeString(p.Title), Width: plotWidth, Height: 40 + panelHeight*len(p.Panels)}
	for i, panel := range p.Panels {
		view.Panels = append(view.Panels, panel.draw(40+panelHeight*i))
	}
	if err := svgForm().Execute(w, view); err != nil {
		return fmt.Errorf("draw a plot: %w", err)
	}
	return nil
}

type svgView struct {
	Title         string
	Width, Height int
	Panels        []svgPanel
}

type svgPanel struct {
	Title                    string
	Y, Left, Right, Top, End int
	X, Ticks                 []svgTick // ticks of the time; of the latency
	Line                     *svgTick
	Series                   []svgSeries
}

type svgTick struct {
	At    string
	Label string
}

type svgSeries struct {
	Name, Colour string
	Fill         string
	LegendX      int
	Dots         []svgDot
}

type svgDot struct{ X, Y, Title string }

// scale is where a panel's values stand.
type scale struct {
	seconds    float64 // the whole width
	low, high  float64 // decades of a millisecond
	top, inner float64
}

func (p Panel) scale(top int) scale {
	s := scale{seconds: 1, low: 0, high: 3.2, top: float64(top), inner: innerHeight}
	for _, series := range p.Series {
		for _, pt := range series.Points {
			s.seconds = max(s.seconds, pt.At.Seconds())
			s.low = min(s.low, math.Floor(decade(pt.Took)))
			s.high = max(s.high, decade(pt.Took)+0.2)
		}
	}
	return s
}

// decade of a duration in milliseconds; what took next to nothing counts as a
// microsecond.
func decade(d time.Duration) float64 {
	return math.Log10(max(float64(d)/float64(time.Millisecond), 1e-3))
}

func (s scale) x(d time.Duration) string {
	return fmt.Sprintf("%.1f", plotLeft+d.Seconds()/s.seconds*(plotWidth-plotLeft-plotRight))
}

func (s scale) y(d float64) string {
	return fmt.Sprintf("%.1f", s.top+s.inner*(s.high-d)/(s.high-s.low))
}

func (p Panel) draw(y int) svgPanel {
	s := p.scale(y + plotTop)
	v := svgPanel{Title: html.EscapeString(p.Title), Y: y, Left: plotLeft, Right: plotWidth - plotRight, Top: y + plotTop, End: y + plotTop + innerHeight}
	for d := s.low; d <= s.high; d++ {
		v.Ticks = append(v.Ticks, svgTick{s.y(d), fmt.Sprintf("%g ms", math.Pow(10, d))})
	}
	step := niceStep(s.seconds)
	for at := 0.0; at <= s.seconds; at += step {
		v.X = append(v.X, svgTick{s.x(time.Duration(at * float64(time.Second))), fmt.Sprintf("%g s", at)})
	}
	if p.Line > 0 {
		v.Line = &svgTick{s.y(decade(p.Line)), p.Line.String()}
	}
	legend := plotLeft
	for _, series := range p.Series {
		d := svgSeries{Name: html.EscapeString(fmt.Sprintf("%s (%d)", series.Name, len(series.Points))), Colour: html.EscapeString(series.Colour), LegendX: legend}
		if d.Fill = d.Colour; series.Hollow {
			d.Fill = "none"
		}
		for _, pt := range series.Points {
			d.Dots = append(d.Dots, svgDot{s.x(pt.At), s.y(decade(pt.Took)), fmt.Sprintf("%.1f ms", Millis(pt.Took))})
		}
		v.Series = append(v.Series, d)
		legend += 40 + 7*len([]rune(d.Name))
	}
	return v
}

// niceStep divides an axis into about ten.
func niceStep(whole float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(whole/10)))
	for _, m := range []float64{1, 2, 5, 10} {
		if whole/(step*m) <= 12 {
			return step * m
		}
	}
	return whole
}

func svgForm() *template.Template {
	return template.Must(template.New("plot").Parse(strings.TrimSpace(`
<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif" font-size="12">
<title>{{.Title}}</title>
<rect width="100%" height="100%" fill="#fff"/>
<text x="20" y="26" font-size="16" font-weight="bold">{{.Title}}</text>
{{range $p := .Panels}}<g>
<text x="{{.Left}}" y="{{.Y}}" dy="22" font-weight="bold">{{.Title}}</text>
{{range .Ticks}}<line x1="{{$p.Left}}" x2="{{$p.Right}}" y1="{{.At}}" y2="{{.At}}" stroke="#ddd"/><text x="{{$p.Left}}" y="{{.At}}" dx="-6" dy="4" text-anchor="end">{{.Label}}</text>
{{end}}{{range .X}}<line x1="{{.At}}" x2="{{.At}}" y1="{{$p.Top}}" y2="{{$p.End}}" stroke="#eee"/><text x="{{.At}}" y="{{$p.End}}" dy="16" text-anchor="middle">{{.Label}}</text>
{{end}}{{with .Line}}<line x1="{{$p.Left}}" x2="{{$p.Right}}" y1="{{.At}}" y2="{{.At}}" stroke="#b2182b" stroke-dasharray="6 4"/><text x="{{$p.Right}}" y="{{.At}}" dy="-4" text-anchor="end" fill="#b2182b">{{.Label}}</text>
{{end}}{{range $s := .Series}}<g stroke="{{.Colour}}" fill="{{.Fill}}" fill-opacity="0.6">
<circle cx="{{.LegendX}}" cy="{{$p.Y}}" r="4" transform="translate(6 41)"/>{{range .Dots}}
<circle cx="{{.X}}" cy="{{.Y}}" r="3"><title>{{$s.Name}}: {{.Title}}</title></circle>{{end}}
</g><text x="{{.LegendX}}" y="{{$p.Y}}" dx="16" dy="45">{{.Name}}</text>
{{end}}</g>
{{end}}</svg>
`) + "\n"))
}
