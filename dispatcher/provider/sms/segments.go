package sms

import (
	"strings"
	"unicode/utf16"
)

// Encoding is how a text goes over the air.
type Encoding string

// The encodings. One character beyond GSM-7 makes the whole text UCS-2.
const (
	GSM7 Encoding = "gsm-7"
	UCS2 Encoding = "ucs-2"
)

// The alphabets of GSM 03.38. What stands in the second costs two places.
const (
	gsmBasic = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡" +
		"ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
	gsmExtended = "\f^{}\\[~]|€"
)

// Segments gives how many messages a text is carried in, which is what it
// costs, and its encoding: 160 places of GSM-7 or 70 of UCS-2, and seven or
// three fewer in each where there are several. A character that takes two
// places is never cut in half.
func Segments(text string) (int, Encoding) {
	costs, encoding := places(text)
	single, several := 160, 153
	if encoding == UCS2 {
		single, several = 70, 67
	}
	total := 0
	for _, c := range costs {
		total += c
	}
	if total <= single {
		return 1, encoding
	}
	count, used := 1, 0
	for _, c := range costs {
		if used+c > several {
			count, used = count+1, 0
		}
		used += c
	}
	return count, encoding
}

// places gives what each character costs.
func places(text string) ([]int, Encoding) {
	costs := make([]int, 0, len(text))
	for _, r := range text {
		switch {
		case strings.ContainsRune(gsmBasic, r):
			costs = append(costs, 1)
		case strings.ContainsRune(gsmExtended, r):
			costs = append(costs, 2)
		default:
			return wide(text), UCS2
		}
	}
	return costs, GSM7
}

func wide(text string) []int {
	costs := make([]int, 0, len(text))
	for _, r := range text {
		costs = append(costs, utf16.RuneLen(r))
	}
	return costs
}
