"""Programs that use the network or another machine, Windows' by the names that PowerShell's aliases stand for."""

from __future__ import annotations

from policy.programs.row import Program, rows

_ELSEWHERE = "programs in a container or on another machine"
_CURL = (
    "-o,--output=output --output-dir=directory -O,--remote-name:by-url --remote-name-all:by-url "
    "-J,--remote-header-name:by-server "
    "-K,--config=! --engine=! -D,--dump-header=write -c,--cookie-jar=write --trace=write --trace-ascii=write "
    "--stderr=write "
    "--hsts=write --alt-svc=write --libcurl=write --etag-save=write "
    "-T,--upload-file=read+upload "
    "-E,--cert=read --key=read --cacert=read --capath= --netrc-file=read --etag-compare=read "
    "--proxy-cert=read --proxy-key=read --proxy-cacert=read --unix-socket=read --abstract-unix-socket= "
    "--crlfile=read --ssl-sessions=write "
    "-b,--cookie=cookie -d,--data,--data-ascii=data --data-binary=data --data-urlencode=data --json=data "
    "--url-query=data "
    "-F,--form=data -H,--header=data --proxy-header=data -w,--write-out=data --variable=data --url=url "
    "--expand-output=! --expand-data=! "
    "--proto-default=proto -X,--request= -A,--user-agent= -e,--referer= -u,--user= -U,--proxy-user= "
    "-x,--proxy= -m,--max-time= "
    "-C,--continue-at= -r,--range= -y,--speed-time= -Y,--speed-limit= -z,--time-cond= -t,--telnet-option= "
    "-Q,--quote= -P,--ftp-port= "
    "-h? --connect-timeout= --retry= --retry-delay= --retry-max-time= --limit-rate= --max-filesize= "
    "--max-redirs= --resolve= "
    "--connect-to= --interface= --local-port= --dns-servers= --ciphers= --tls-max= --proto= --proto-redir= "
    "--noproxy= --preproxy= "
    "--socks5= --socks5-hostname= --socks4= --socks4a= --oauth2-bearer= --aws-sigv4= --cert-type= --key-type= "
    "--pass= --keepalive-time= "
    "--parallel-max= --rate= --request-target= --expect100-timeout= --doh-url= --form-string= --pinnedpubkey= "
    "--create-file-mode= "
    "-#"
)
_WGET = (
    "-O,--output-document=output -P,--directory-prefix=directory --content-disposition:by-server "
    "--trust-server-names:by-server "
    "-o,--output-file=write -a,--append-output=write --save-cookies=write --hsts-file=write "
    "--rejected-log=write --warc-file=write "
    "--warc-tempdir=write --warc-dedup=read -i,--input-file=read+many --input-metalink=read+many "
    "--post-file=read --body-file=read "
    "--load-cookies=read --certificate=read --private-key=read --ca-certificate=read --crl-file=read "
    "--pinnedpubkey=read "
    "-r,--recursive:many -m,--mirror:many -p,--page-requisites:many -x,--force-directories:many --metalink-file=many "
    "--use-askpass=! -e,--execute=! --config=! --default-page=page "
    "-A,--accept= -R,--reject= -D,--domains= -I,--include-directories= -X,--exclude-directories= -l,--level= "
    "-Q,--quota= -T,--timeout= "
    "-t,--tries= -U,--user-agent= -w,--wait= -B,--base= --header= --method= --body-data= --post-data= --user= "
    "--password= "
    "--http-user= --ftp-user= --referer= --limit-rate= --waitretry= --http-password= "
    "--ftp-password= "
    "--random-wait --cut-dirs= "
    "--secure-protocol= --progress= --dns-timeout= --connect-timeout= --read-timeout= --bind-address= "
    "--prefer-family= --ciphers= "
    "--retry-on-http-error= --max-redirect= --accept-regex= --reject-regex= --regex-type= --ignore-tags= "
    "--follow-tags= --report-speed= "
    "--local-encoding= --remote-encoding= --start-pos= --restrict-file-names= --compression= --ca-directory= "
    "--random-file= --egd-file="
)

ROWS = rows(
    {
        "curl": Program(options=_CURL, risky=r"-[A-Za-z0-9]*K.*", operands="curl", network=True),
        "wget": Program(options=_WGET, risky=r"-[bdFcqvnNSxrEkKmpHL46]*e.*", operands="wget", network=True),
        "aria2c": Program(risky=r"--on-.*|--conf.*", network=True),
        "axel http https httpie xh lynx links elinks w3m tftp ssh-keyscan rlogin rcp unison croc wormhole ping "
        "ping6 traceroute "
        "tracepath mtr nmap masscan hping3 arping dig nslookup host drill whois ntpdate openvpn wg-quick ngrok "
        "cloudflared "
        "sendmail msmtp swaks gcloud gsutil az glab": Program(network=True),
        "tcpdump": Program(options="-w=write", risky=r"-[A-Za-z0-9]*z.*", network=True),
        "ip": Program(risky=r"-b.*|-force", words="netns exec"),
        "ifconfig route netstat ss": Program(),
        "aws": Program(risky=r".*(?:credential_process|cli_pager).*", network=True),
        "restic borg": Program(risky=r"--(?:password-c|rsh|remote-path).*|-o.*"),
        "rclone": Program(risky=r"--(?:password-c|rsh|remote-path).*|-o.*", network=True),
        "yt-dlp youtube-dl": Program(
            options="--exec=! --downloader=! --external-downloader=! --config?! --config-locations=! --netrc-cmd=!",
            network=True,
        ),
        "ssh-keygen": Program(options="-D=! -w=! -f=write -t= -b= -C= -N= -P=", risky=r"-[A-Za-z0-9]*[Dw].*"),
        "ssh-add": Program(risky=r"-[A-Za-z0-9]*[sS].*"),
        "gpg gpg2": Program(
            options="-o,--output=write --photo-viewer=! --exec-path=! --agent-program=! --dirmngr-program=! "
            "--keyserver-options=! "
            "--homedir=! --options=! --keyserver= -r,--recipient= -u,--local-user="
        ),
        "bitsadmin certutil invoke-webrequest invoke-restmethod start-bitstransfer test-connection test-netconnection "
        "resolve-dnsname send-mailmessage": Program(network=True),
        "docker podman": Program("files", _ELSEWHERE, online="pull push login search"),
        "kubectl helm": Program("files", _ELSEWHERE, network=True),
        "nerdctl docker-compose podman-compose vagrant multipass lxc ansible ansible-playbook terraform tofu "
        "service systemctl": Program("files", _ELSEWHERE),
    }
)
